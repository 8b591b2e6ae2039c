"""Every backend of the draft law that this machine can run, side by side on the same rows."""
