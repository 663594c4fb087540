"""The floor of stdio: a fixed line for every line, as long as Dovetail's response to the same call."""

import sys

ANSWER = (
    b'{"jsonrpc":"2.0","id":100000,"result":{"resultType":"complete","content":[{"type":"text","text":"3"}],'
    b'"structuredContent":3,"isError":false,"_meta":{"io.modelcontextprotocol/serverInfo":'
    b'{"name":"bench","version":"1.0.0"}}}}\n'
)


def main() -> None:
    read, write, flush = sys.stdin.buffer.readline, sys.stdout.buffer.write, sys.stdout.buffer.flush
    while read():
        write(ANSWER)
        flush()


if __name__ == "__main__":
    main()
