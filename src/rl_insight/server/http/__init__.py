"""HTTP: access control, limits on requests, bodies, responses, and the files of the page."""
