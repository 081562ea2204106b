"""What this process asks of the operating system and of the interpreter: workers, forks, memory, exit."""
