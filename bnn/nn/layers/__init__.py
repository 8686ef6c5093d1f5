"""Layer types: how weights act on inputs. One file each; none knows a family."""
