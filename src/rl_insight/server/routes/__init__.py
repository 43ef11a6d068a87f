"""The HTTP routes, one module per group; `server/app.py` lists them."""
