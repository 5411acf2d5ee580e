// The websocket: protocol v1 (docs/protocol.md), gone on with after a break without losing or doubling anything.

const LONGEST_WAIT_MS = 4000, KEPT_BYTES = 4 * 1024 * 1024, KEEPALIVE_MS = 20000;

/** Where the socket is, whatever the page's own address and path. */
export function streamUrl(page = location.href) {
  const url = new URL("v1/stream", page);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  url.search = url.hash = "";
  return url.href;
}

export class CaptionStream {
  /** `on(message)` gets every server message once; `lost(seconds)` a break; `gone(text)` the end of all tries. */
  constructor(start, { on, lost, gone }) {
    this.start = start;
    this.on = on;
    this.lost = lost;
    this.gone = gone;
    this.kept = []; // audio that the server has not said it has, oldest first
    this.keptBytes = 0;
    this.offset = 0; // bytes of audio before `kept`
    this.seq = 0;
    this.resume = null;
    this.ready = false;
    this.ending = false;
    this.over = false;
    this.tries = 0;
    this.newest = {}; // settings changed since the start
    this.connect();
  }

  connect() {
    this.socket = new WebSocket(streamUrl());
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => {
      const resume = this.resume ? { resume: { token: this.resume.token, seq: this.seq } } : {};
      this.socket.send(JSON.stringify({ type: "start", ...this.start, ...resume }));
    };
    this.socket.onmessage = (event) => this.take(JSON.parse(event.data));
    this.socket.onclose = (event) => this.closed(event);
    clearInterval(this.keeper);
    this.keeper = setInterval(() => this.send({ type: "keepalive" }), KEEPALIVE_MS);
  }

  take(message) {
    if (message.seq !== undefined) {
      if (message.seq <= this.seq) return;
      this.seq = message.seq;
      this.send({ type: "ack", seq: message.seq });
    }
    if (message.type === "ready") this.begin(message);
    if (message.type === "heartbeat") this.forget(message.received_bytes);
    if (message.type === "closed" || message.fatal) this.over = true;
    this.on(message);
  }

  begin(message) {
    this.tries = 0;
    this.resume = message.resume;
    this.forget(message.received_bytes);
    this.ready = true;
    for (const piece of this.kept) this.socket.send(piece);
    if (Object.keys(this.newest).length) this.send({ type: "update", ...this.newest });
    if (this.ending) this.send({ type: "end" });
  }

  /** Drops audio that the server has. */
  forget(received) {
    while (this.kept.length && this.offset + this.kept[0].byteLength <= received) {
      this.offset += this.kept[0].byteLength;
      this.keptBytes -= this.kept.shift().byteLength;
    }
    if (this.kept.length && received > this.offset && !this.ready) {
      this.kept[0] = this.kept[0].slice(received - this.offset);
      this.keptBytes -= received - this.offset;
      this.offset = received;
    }
  }

  audio(buffer) {
    if (this.over || this.ending) return;
    this.kept.push(buffer);
    this.keptBytes += buffer.byteLength;
    if (this.keptBytes > KEPT_BYTES) return this.fail("The connection was away for too long; the recording was stopped.");
    if (this.ready) this.socket.send(buffer);
  }

  send(message) {
    if (this.ready && this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  /** Another setting; at once, or as soon as the session is there (again). */
  update(fields) {
    Object.assign(this.newest, fields);
    this.send({ type: "update", ...fields });
  }

  end() {
    this.ending = true;
    this.send({ type: "end" });
  }

  closed(event) {
    this.ready = false;
    clearInterval(this.keeper);
    if (this.over) return;
    if (!this.resume && this.tries === 0 && event.code !== 1006) return this.fail(event.reason || `closed (${event.code})`);
    const wait = Math.min(LONGEST_WAIT_MS, 250 * 2 ** this.tries);
    if (++this.tries > 8) return this.fail("The server cannot be reached.");
    this.lost(wait / 1000);
    setTimeout(() => this.connect(), wait);
  }

  fail(text) {
    this.over = true;
    this.socket.close();
    this.gone(text);
  }
}
