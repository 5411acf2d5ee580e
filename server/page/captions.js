// Segments of words to subtitle files. No page, no clock: text in, text out.

const LINE = 42, LINES = 2, LONGEST_MS = 7000, SHORTEST_MS = 300;

/** Cues {start_ms, end_ms, lines}: at most two lines of 42 characters and 7 s, ended at punctuation where one can be. */
export function cues(segments) {
  const found = [];
  for (const words of segments) {
    let open = [];
    const close = () => { if (open.length) found.push(cue(open)); open = []; };
    for (const word of words) {
      const together = [...open, word];
      const tooLong = lines(together).length > LINES || word.end_ms - together[0].start_ms > LONGEST_MS;
      if (open.length && tooLong) close();
      open.push(word);
      if (/[.?!…]["'”’)]*$/.test(word.text) && text(open).length > LINE) close();
    }
    close();
  }
  for (let at = 0; at + 1 < found.length; at++) {
    found[at].end_ms = Math.max(found[at].start_ms + 1, Math.min(found[at].end_ms, found[at + 1].start_ms));
  }
  return found;
}

const text = (words) => words.map((word) => word.text).join(" ");

function cue(words) {
  const start_ms = words[0].start_ms;
  return { start_ms, end_ms: Math.max(words.at(-1).end_ms, start_ms + SHORTEST_MS), lines: lines(words) };
}

function lines(words) {
  const found = [""];
  for (const word of words) {
    const longer = found.at(-1) ? `${found.at(-1)} ${word.text}` : word.text;
    if (longer.length <= LINE || !found.at(-1)) found[found.length - 1] = longer;
    else found.push(word.text);
  }
  return found;
}

function stamp(ms, mark) {
  const two = (value) => String(value).padStart(2, "0");
  const seconds = Math.floor(ms / 1000);
  return `${two(Math.floor(seconds / 3600))}:${two(Math.floor(seconds / 60) % 60)}:${two(seconds % 60)}${mark}${String(ms % 1000).padStart(3, "0")}`;
}

export function srt(segments) {
  return cues(segments)
    .map((one, at) => `${at + 1}\n${stamp(one.start_ms, ",")} --> ${stamp(one.end_ms, ",")}\n${one.lines.join("\n")}\n`)
    .join("\n");
}

export function vtt(segments) {
  const escaped = (line) => line.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const body = cues(segments).map(
    (one) => `${stamp(one.start_ms, ".")} --> ${stamp(one.end_ms, ".")}\n${one.lines.map(escaped).join("\n")}\n`,
  );
  return ["WEBVTT\n", ...body].join("\n");
}
