from tests.reader.conftest import (  # noqa: F401
    _no_settings_of_the_user,
    crowd_files,
    crowd_served,
    files,
    place,
    served,
    server_url,
)
