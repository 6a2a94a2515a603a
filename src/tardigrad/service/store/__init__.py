"""The server's state on disk: its journal, the uploads, and recovery from both."""
