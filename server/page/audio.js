// Sources of 16-bit mono PCM: a microphone, and a file that is played out in real time.

export const RATE = 16000;
const PIECE_MS = 100;

export class SourceError extends Error {}

const REFUSED = {
  NotAllowedError: "The microphone was refused. Allow it for this page in the browser’s address bar, then try again.",
  NotFoundError: "No microphone was found. Plug one in, or drop an audio file.",
  NotReadableError: "The microphone is in use by another program, or its driver failed.",
  OverconstrainedError: "No microphone fits what this page needs.",
};

/** Why this page cannot record at all; null if it can. */
export function whyNoMicrophone() {
  if (!window.isSecureContext) {
    return `Browsers give the microphone to secure pages only. Open this page over https, or on the server’s own machine at http://localhost:${location.port || 80}. Audio files work here too.`;
  }
  if (!navigator.mediaDevices?.getUserMedia || !window.AudioWorkletNode) {
    return "This browser cannot record. Audio files work here too.";
  }
  return null;
}

/** A microphone; `heard(ArrayBuffer)` gets 20 ms at a time. Gives {rate, stop()}. */
export async function openMicrophone(heard) {
  const why = whyNoMicrophone();
  if (why) throw new SourceError(why);
  let media;
  try {
    media = await navigator.mediaDevices.getUserMedia({
      audio: { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: true },
    });
  } catch (error) {
    throw new SourceError(REFUSED[error.name] ?? `The microphone cannot be opened: ${error.message}`);
  }
  let context, source;
  try {
    context = new AudioContext({ sampleRate: RATE });
    source = context.createMediaStreamSource(media);
  } catch {
    // Some browsers do not convert a microphone's rate: the server does.
    await context?.close();
    context = new AudioContext();
    source = context.createMediaStreamSource(media);
  }
  const stop = async () => {
    media.getTracks().forEach((track) => track.stop());
    if (context.state !== "closed") await context.close();
  };
  if (context.sampleRate > 48000) {
    await stop();
    throw new SourceError(`The microphone records at ${context.sampleRate} Hz; at most 48000 can be used.`);
  }
  await context.audioWorklet.addModule(new URL("recorder.js", import.meta.url));
  const node = new AudioWorkletNode(context, "recorder", { numberOfOutputs: 0 });
  node.port.onmessage = (event) => heard(event.data);
  source.connect(node);
  await context.resume();
  return { rate: context.sampleRate, stop };
}

/** A file's audio at 16 kHz, mono. */
export async function decodeFile(file) {
  let buffer;
  try {
    const context = new OfflineAudioContext({ numberOfChannels: 1, length: 1, sampleRate: RATE });
    buffer = await context.decodeAudioData(await file.arrayBuffer());
  } catch {
    throw new SourceError(`${file.name} holds no audio that this browser can decode.`);
  }
  const samples = new Int16Array(buffer.length);
  const channels = Array.from({ length: buffer.numberOfChannels }, (_, at) => buffer.getChannelData(at));
  for (let at = 0; at < samples.length; at++) {
    let sum = 0;
    for (const channel of channels) sum += channel[at];
    samples[at] = Math.max(-32768, Math.min(32767, Math.round((sum / channels.length) * 32768)));
  }
  return samples;
}

/** Hands samples on as fast as they would be spoken, then calls `ended`. Gives {rate, stop()}. */
export function playOut(samples, heard, ended) {
  const began = performance.now();
  let sent = 0;
  const timer = setInterval(() => {
    const due = Math.min(samples.length, Math.floor(((performance.now() - began) * RATE) / 1000));
    if (due > sent) heard(samples.slice(sent, due).buffer);
    sent = due;
    if (sent === samples.length) {
      clearInterval(timer);
      ended();
    }
  }, PIECE_MS);
  return { rate: RATE, stop: async () => clearInterval(timer) };
}
