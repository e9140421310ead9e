"use strict";
// Asks one prompt twice at the same moment, without drafts and with them, and colours what was drafted and accepted.

const part = (name) => document.getElementById(`play-${name}`);
const colours = new Map();

function colourOf(proposer) {
  if (!colours.has(proposer)) {
    colours.set(proposer, `by${colours.size % 5}`);
    part("key-of-colours").append(Object.assign(document.createElement("span"), { className: colours.get(proposer), textContent: proposer.replaceAll("_", " ") }));
  }
  return colours.get(proposer);
}

class Pane {
  constructor(mode) {
    [this.mode, this.text, this.figures, this.bar] = [mode, part(`${mode}-text`), part(`${mode}-figures`), part(`${mode}-bar`)];
    this.text.replaceChildren();
    this.bar.value = this.tokens = 0;
    this.bar.max = part("tokens").value;
    [this.began, this.reading, this.more] = [performance.now(), "waiting", ""];
  }
  get rate() { return this.tokens / this.seconds; }
  show() {
    this.seconds = ((this.ended ?? performance.now()) - this.began) / 1000;
    this.bar.value = this.tokens;
    this.figures.textContent = this.tokens ? `${this.tokens} tokens in ${this.seconds.toFixed(2)} s: ${this.rate.toFixed(1)} tokens/s${this.more}` : `${this.reading}, ${this.seconds.toFixed(1)} s`;
  }
  take(chunk) {
    const prompt = chunk.speculation?.prompt, figures = chunk.metrics?.speculative_decoding;
    if (chunk.error) throw new Error(chunk.error.message);
    if (prompt) this.reading = `${prompt.read.toLocaleString("en")} of ${prompt.of.toLocaleString("en")} tokens of the prompt read`;
    if (figures?.num_draft_tokens) this.more = `, ${figures.num_accepted_draft_tokens} of ${figures.num_draft_tokens} drafted tokens accepted`;
    else if (figures && this.mode !== "off") this.more = `, nothing drafted: ${chunk.metrics.effective.reason.replaceAll("_", " ")}`;
    this.tokens = chunk.usage?.completion_tokens ?? this.tokens;
    for (const { text, drafted_by: by } of (chunk.choices ?? []).flatMap((choice) => choice.origins ?? [])) {
      const span = Object.assign(document.createElement("span"), { textContent: text });
      if (by) Object.assign(span, { className: colourOf(by), title: `drafted by ${by}` });
      this.text.append(span);
    }
  }
  async ask(request, body, signal) {
    const sent = { ...body, cache_salt: `playground-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`, speculation: { mode: this.mode, origins: true, metrics: true } };
    const reply = await fetch("/v1/chat/completions", { ...request, signal, body: JSON.stringify(sent) });
    if (!reply.ok) throw new Error((await reply.json()).error.message);
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data: {")) this.take(JSON.parse(line.slice(6)));
    }
    this.ended = performance.now();
  }
}

function bodyOf(form) {
  const messages = [["system", form.system], ["user", form.prompt]].filter(([, content]) => content.trim());
  const body = {
    model: form.model, messages: messages.map(([role, content]) => ({ role, content })),
    max_tokens: Number(form.max_tokens), temperature: Number(form.temperature), seed: crypto.getRandomValues(new Uint32Array(1))[0],
    stream: true, stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  try { return form.tools.trim() ? { ...body, tools: JSON.parse(form.tools) } : body; } catch (error) { throw new Error(`tools is not JSON: ${error.message}.`); }
}

document.getElementById("play").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = Object.fromEntries(new FormData(event.target)), state = part("state"), stop = part("stop"), button = event.target.querySelector("button");
  const request = { method: "POST", headers: { "content-type": "application/json", ...(form.key && { authorization: `Bearer ${form.key}` }) } };
  const race = new AbortController();
  stop.onclick = () => race.abort(new Error("stopped"));
  [button.hidden, stop.hidden] = [true, false];
  stop.focus();
  colours.clear();
  part("key-of-colours").replaceChildren();
  state.textContent = "Both run…";
  const panes = [new Pane("off"), new Pane("auto")], show = () => panes.forEach((pane) => pane.show()), timer = setInterval(show, 100);
  try {
    const body = bodyOf(form);
    await Promise.all(panes.map((pane) => pane.ask(request, body, race.signal)));
    const [plain, drafting] = panes, same = plain.text.textContent === drafting.text.textContent;
    state.textContent = `With speculation ${(drafting.rate / plain.rate).toFixed(2)}x as fast; the answers ${same ? "are the same" : "differ"}.`;
  } catch (error) {
    state.textContent = race.signal.aborted ? "Stopped." : `Not possible: ${error.message}`;
    race.abort(error); // one that failed ends the other
    panes.forEach((pane) => { pane.reading = "no answer"; });
  } finally {
    clearInterval(timer);
    show();
    [button.hidden, stop.hidden] = [false, true];
    if (document.activeElement === document.body) button.focus({ preventScroll: true });
  }
});
