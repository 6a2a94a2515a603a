"""What a server keeps between two processes: its journal, the uploads, and recovery from both."""
