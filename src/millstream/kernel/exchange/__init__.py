"""How rows go from stage to stage: chunks, what is sent of them and to which bucket, and what is collected at the end."""
