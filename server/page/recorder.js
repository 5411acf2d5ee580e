// In the audio thread: what the microphone gives, mixed to mono, in pieces of 20 ms.

class Recorder extends AudioWorkletProcessor {
  constructor() {
    super();
    this.size = Math.round(sampleRate / 50);
    this.piece = new Int16Array(this.size);
    this.filled = 0;
  }

  process(inputs) {
    const channels = inputs[0];
    if (!channels.length) return true;
    for (let at = 0; at < channels[0].length; at++) {
      let sum = 0;
      for (const channel of channels) sum += channel[at];
      const value = Math.round((sum / channels.length) * 32768);
      this.piece[this.filled++] = Math.max(-32768, Math.min(32767, value));
      if (this.filled === this.size) {
        this.port.postMessage(this.piece.buffer, [this.piece.buffer]);
        this.piece = new Int16Array(this.size);
        this.filled = 0;
      }
    }
    return true;
  }
}

registerProcessor("recorder", Recorder);
