"""How the server speaks HTTP: access control, bounds on requests, bodies, answers, and the files of the page."""
