"""The joint search on machines where one program runs a network, so that units overlap across its parts."""
