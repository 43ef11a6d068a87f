"""The Ray hub: an actor that collects the batches of a job's processes and relays them to the server."""
