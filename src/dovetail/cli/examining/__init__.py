"""What `dovetail doctor` looks at: each module has examinations, which give notes."""
