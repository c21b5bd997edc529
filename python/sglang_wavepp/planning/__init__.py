"""Planning decisions: spans, waves and lanes. Imports neither torch nor sglang nor zmq."""
