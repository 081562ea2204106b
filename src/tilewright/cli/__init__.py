"""The command line: `main` and one file per verb. A verb parses, calls one API function, prints."""
