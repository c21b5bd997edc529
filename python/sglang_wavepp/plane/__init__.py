"""Messages between ranks and the links that carry them."""
