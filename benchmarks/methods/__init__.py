"""The methods of a run side by side: loss against bytes, in one process and without sockets."""
