from tests.reader.conftest import _no_settings_of_the_user, files, place, served, server_url  # noqa: F401
