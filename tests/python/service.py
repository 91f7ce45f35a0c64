"""A web service on loopback, for tests whose programs ask one."""

import http.server
import threading


class Service:
    """Serves while its context lasts. `handler` answers, as `http.server` says."""

    def __init__(self, handler):
        class Quiet(handler):
            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
