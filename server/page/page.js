// The page: one recording at a time from a source to the server, and what the server says on the screen.

import { decodeFile, openMicrophone, playOut, SourceError, whyNoMicrophone } from "./audio.js";
import { srt, vtt } from "./captions.js";
import { draw, quantile, seconds } from "./chart.js";
import { CaptionStream } from "./stream.js";

const $ = (id) => document.getElementById(id);
const captions = $("captions");

let opening = false; // while a source is being opened
let recording = null; // {stream, source, words, segments, ...} while one is under way or can be downloaded

// -- what is shown -------------------------------------------------------------------------------------------------

function say(text) {
  $("message").textContent = text ?? "";
  $("message").hidden = !text;
}

function state(name, text) {
  $("status").dataset.state = name;
  $("status").textContent = text;
}

function buttons(running) {
  $("microphone").hidden = $("choose").hidden = running;
  $("stop").hidden = !running;
  for (const id of ["srt", "vtt", "json"]) $(id).disabled = !recording?.words.length;
}

function atBottom() {
  return captions.scrollHeight - captions.scrollTop - captions.clientHeight < 60;
}

function keepBottom(change) {
  const follow = atBottom();
  change();
  if (follow) captions.scrollTop = captions.scrollHeight;
}

function paragraph() {
  const made = document.createElement("p");
  captions.insertBefore(made, recording.tail.parentElement === captions ? recording.tail : null);
  recording.text = document.createElement("span");
  made.append(recording.text, recording.tail);
  return made;
}

function showWords(message) {
  const fresh = message.words;
  if (message.amended) recording.words[message.amended.index].text = message.amended.text;
  recording.words.push(...fresh);
  const append = (text) => recording.text.append(recording.text.textContent ? text : text.trimStart());
  keepBottom(() => {
    // Committed text is only ever appended to; late punctuation belongs to the paragraph before.
    const end = message.amended ? message.text.search(/\s|$/) : 0;
    append(message.text.slice(0, end));
    if (recording.owed && fresh.length) {
      recording.owed = false;
      paragraph();
    }
    append(message.text.slice(end));
  });
  for (const word of fresh) {
    recording.audio.push(word.delay_ms.audio);
    if (word.delay_ms.wall !== null) recording.wall.push(word.delay_ms.wall);
  }
  showDelays();
  buttons(running());
}

function showDelays() {
  const { p50, p95 } = draw($("chart"), recording?.wall ?? []);
  $("p50").textContent = seconds(p50);
  $("p95").textContent = seconds(p95);
  $("count").textContent = recording?.words.length ?? 0;
  const audio = quantile(recording?.audio ?? [], 0.5);
  $("audio-delay").textContent = audio === null ? "" : `On the audio’s own clock the median is ${seconds(audio)}.`;
}

function showSegment(message) {
  recording.segments.push([message.first, message.first + message.count]);
  const line = document.createElement("p");
  line.textContent = message.text;
  $("spoken").append(line);
  while ($("spoken").childElementCount > 20) $("spoken").firstChild.remove();
  recording.owed = true; // the next word opens a paragraph
}

function showVerdicts(phrases) {
  const refused = (phrases ?? []).filter((one) => !one.accepted || one.reason);
  $("verdicts").replaceChildren(
    ...refused.map((one) => {
      const item = document.createElement("li");
      item.textContent = `${one.text}: ${one.reason || "not used"}`;
      return item;
    }),
  );
}

function showReady(message) {
  state("live", "Live");
  const { delay_ms: delays } = message.limits;
  $("delay").min = Math.min(...delays);
  $("delay").max = Math.max(...delays);
  $("phrases").disabled = $("boost").disabled = !message.features.phrases;
  $("boost").max = message.limits.boost;
  if (!message.features.phrases) $("phrases-help").textContent = "This server has no phrase boosting.";
  showVerdicts(message.phrases);
  $("facts").textContent = `Model ${message.model}, chunks of ${message.settings.chunk_ms} ms; up to ${message.limits.sessions} sessions at once.`;
}

function take(message) {
  if (message.type === "ready") showReady(message);
  else if (message.type === "words") showWords(message);
  else if (message.type === "tail") {
    keepBottom(() => { recording.tail.textContent = message.text ? ` ${message.text}` : ""; });
  } else if (message.type === "segment") showSegment(message);
  else if (message.type === "heartbeat") {
    const late = message.lag_ms > 1500;
    state(late ? "waiting" : "live", late ? `Behind by ${(message.lag_ms / 1000).toFixed(1)} s` : "Live");
  } else if (message.type === "updated") showVerdicts(message.phrases);
  else if (message.type === "warning") {
    if (message.code !== "behind") say(message.text); // how far behind, the heartbeats say
  }
  else if (message.type === "error") {
    if (message.code === "unauthorized") $("access").open = true;
    say(message.text);
    if (message.fatal) finish("Refused");
  } else if (message.type === "closed") {
    finish(message.reason === "end" ? "Finished" : `Ended by the server: ${message.reason}`);
  }
}

// -- a recording's life --------------------------------------------------------------------------------------------

function begin(rate) {
  $("hint")?.remove();
  captions.replaceChildren();
  $("spoken").replaceChildren();
  const tail = document.createElement("span");
  tail.className = "tail";
  tail.setAttribute("aria-hidden", "true");
  recording = { words: [], segments: [], wall: [], audio: [], tail, text: null, owed: false, began: new Date(), source: null };
  paragraph();
  showDelays();
  const token = $("token").value;
  recording.stream = new CaptionStream(
    {
      encoding: "pcm_s16le", sample_rate: rate, delay_ms: Number($("delay").value),
      ...(phrases().length ? favoured() : {}), ...(token ? { token } : {}),
    },
    {
      on: take,
      lost: (wait) => state("waiting", `Connection lost, again in ${wait} s`),
      gone: (text) => { say(text); finish("Disconnected"); },
    },
  );
  state("waiting", "Connecting");
  buttons(true);
}

async function record() {
  if (opening) return;
  opening = true;
  say(null);
  state("waiting", "Waiting for the microphone");
  const early = [];
  let mine = null;
  try {
    const source = await openMicrophone((piece) => (mine ? mine.stream.audio(piece) : early.push(piece)));
    begin(source.rate);
    recording.source = source;
    early.forEach((piece) => recording.stream.audio(piece));
    mine = recording;
    $("stop").focus();
  } catch (error) {
    refuse(error);
  }
  opening = false;
}

async function play(file) {
  if (opening || running()) return;
  opening = true;
  say(null);
  try {
    state("waiting", `Reading ${file.name}`);
    const samples = await decodeFile(file);
    begin(16000);
    const mine = recording;
    mine.source = playOut(samples, (piece) => mine.stream.audio(piece), () => mine.stream.end());
  } catch (error) {
    refuse(error);
  }
  opening = false;
}

function refuse(error) {
  buttons(false);
  state("idle", "Ready");
  if (!(error instanceof SourceError)) console.error(error);
  say(error instanceof SourceError ? error.message : `Something failed on this page: ${error.message}`);
}

async function stop() {
  state("waiting", "Finishing");
  await recording.source?.stop();
  recording.stream.end();
}

function finish(text) {
  recording.source?.stop();
  recording.tail.textContent = "";
  state("idle", text);
  buttons(false);
}

// -- settings and downloads ----------------------------------------------------------------------------------------

const phrases = () => $("phrases").value.split("\n").map((line) => line.trim()).filter(Boolean);
const favoured = () => ({ phrases: phrases(), boost: Number($("boost").value) });
const running = () => Boolean(recording?.stream) && !recording.stream.over;

$("delay").addEventListener("input", () => {
  $("delay-shown").textContent = `${$("delay").value} ms`;
  if (running()) recording.stream.update({ delay_ms: Number($("delay").value) });
});

let typing;
$("phrases").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => { if (running()) recording.stream.update(favoured()); }, 300);
});

$("boost").addEventListener("input", () => {
  $("boost-shown").textContent = Number($("boost").value).toFixed(1);
  if (running() && phrases().length) recording.stream.update(favoured());
});

function bySegment() {
  const ends = recording.segments.map(([first, last]) => recording.words.slice(first, last));
  const rest = recording.words.slice(recording.segments.at(-1)?.[1] ?? 0);
  return rest.length ? [...ends, rest] : ends;
}

function download(suffix, type, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = `captions-${recording.began.toISOString().slice(0, 19).replaceAll(":", "-")}.${suffix}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

$("srt").addEventListener("click", () => download("srt", "application/x-subrip", srt(bySegment())));
$("vtt").addEventListener("click", () => download("vtt", "text/vtt", vtt(bySegment())));
$("json").addEventListener("click", () => {
  const text = recording.words.map((word) => word.text).join(" ");
  download("json", "application/json", JSON.stringify({ text, words: recording.words }, null, 1));
});

$("microphone").addEventListener("click", record);
$("stop").addEventListener("click", stop);
$("choose").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => { if ($("file").files.length) play($("file").files[0]); $("file").value = ""; });

$("access-form").addEventListener("submit", (event) => event.preventDefault());

const stage = document.querySelector(".stage");
for (const name of ["dragenter", "dragover"]) {
  stage.addEventListener(name, (event) => { event.preventDefault(); stage.classList.add("over"); });
}
for (const name of ["dragleave", "drop"]) stage.addEventListener(name, () => stage.classList.remove("over"));
stage.addEventListener("drop", (event) => {
  event.preventDefault();
  if (event.dataTransfer.files.length) play(event.dataTransfer.files[0]);
});
window.addEventListener("resize", showDelays);

showDelays();
const why = whyNoMicrophone();
if (why) {
  $("microphone").disabled = true;
  say(why);
}
