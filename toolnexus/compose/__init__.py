"""Working on streams: views, redaction, merging, recording, outputs."""
