"""A proxy in front of an S3 server: one request at a time for each key, and conditions that hold.

Servers for tests are loose about `If-None-Match: *`: between their look and their write another request fits. Real stores are not, so races are run through
this. It also counts requests, and can lose replies, be slow, or pass over conditions as some stores do. Google's XML API differs from S3's protocol in
the condition and the signature only, as far as it is used here; so an S3 server behind this stands for it.
"""
import collections
import http.client
import http.server
import random
import re
import threading
import urllib.parse

# Servers for tests look whether a request is signed, not by whom.
SIGNED = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
}
HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


def take(headers, name):
    """Removes a header, whatever its case, and gives its value."""
    return next((headers.pop(key) for key in list(headers) if key.lower() == name), None)


class Proxy:
    """Listens on a port of this machine; `url` is what clients are given."""

    def __init__(self, host, port):
        self.target = (host, port)
        self.locks = collections.defaultdict(threading.Lock)
        self.guard = threading.Lock()
        self.requests = []
        self.ignores_conditions = False
        self.lost_replies = 0.0
        self.random = random.Random(7)
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Else the head of a reply goes out alone, and its body waits 40 ms for the client's delayed acknowledgement.
            wbufsize = -1
            disable_nagle_algorithm = True

            def handle_one(self):
                proxy.handle(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def counts(self):
        """How many requests of each method and kind of key there were; forgets them."""
        with self.guard:
            found, self.requests = self.requests, []
        return found

    def send(self, method, path, headers, body):
        connection = http.client.HTTPConnection(*self.target, timeout=60)
        try:
            connection.request(method, path, body=body, headers=headers)
            reply = connection.getresponse()
            return reply.status, reply.getheaders(), reply.read()
        finally:
            connection.close()

    def handle(self, request):
        length = int(request.headers.get("Content-Length") or 0)
        body = request.rfile.read(length) if length else b""
        # Google's clients write the `-` of a bucket as `%2D`, which moto does not read.
        request.path = re.sub("^/[^/?]*", lambda bucket: urllib.parse.unquote(bucket[0]), request.path)
        url = urllib.parse.urlsplit(request.path)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        wants_absence = take(headers, "if-none-match")
        # As Google's stores are asked: generation 0 is that of what is not there.
        if take(headers, "x-goog-if-generation-match") == "0":
            wants_absence = "*"
        if any(name.lower() == "authorization" and value.startswith("Bearer ") for name, value in headers.items()):
            take(headers, "authorization")
            headers |= SIGNED
        with self.guard:
            lock = self.locks[url.path]
            self.requests.append((request.command, url.path + ("?" + url.query if url.query else "")))
            loses = request.command == "PUT" and self.random.random() < self.lost_replies
        with lock:
            status, found, text = None, [], b""
            is_put = request.command == "PUT" and not url.query
            if is_put and wants_absence == "*" and not self.ignores_conditions:
                status, found, text = self.send("HEAD", request.path, SIGNED, b"")
                if status == 200:
                    status, found = 412, []
                    text = b"<Error><Code>PreconditionFailed</Code></Error>"
                else:
                    status = None
            if status is None:
                status, found, text = self.send(request.command, request.path, headers, body)
        if loses:
            # Done, and nobody hears of it.
            request.close_connection = True
            return
        request.send_response(status)
        lengths = [value for name, value in found if name.lower() == "content-length"]
        for name, value in found:
            if name.lower() not in HOP | {"date", "server"}:
                request.send_header(name, value)
        is_head = request.command == "HEAD"
        request.send_header("Content-Length", lengths[0] if is_head and lengths else str(len(text)))
        request.end_headers()
        if not is_head:
            request.wfile.write(text)
