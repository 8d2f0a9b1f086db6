"""A server that takes every request and never answers."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class HangingServer:
    """Takes every POST of a generation and never answers; 404 for everything else."""

    def __init__(self) -> None:
        self.asked = 0
        self.over = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.path.endswith(("/generate", "/completions")):
                    server.asked += 1
                    server.over.wait(300)
                self.send_error(404)

            def do_GET(self) -> None:
                self.send_error(404)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *args: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    @property
    def user_endpoint(self) -> dict[str, str]:
        """A worker's environment variables with this server as the user endpoint `slow`."""
        return {"ROLLQ_USER_ENDPOINTS": f"slow={self.url}"}

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
