"""One of each helper, below everything else: text, checks, extras, files, timing. Private to the library."""
