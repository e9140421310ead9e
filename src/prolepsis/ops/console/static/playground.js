"use strict";
// Asks one prompt twice, without drafts and with them, and colours what was drafted and accepted.

const part = (name) => document.getElementById(`play-${name}`);
const colours = new Map();

function colourOf(proposer) {
  if (!colours.has(proposer)) {
    colours.set(proposer, `by${colours.size % 5}`);
    const shown = document.createElement("span");
    shown.className = colours.get(proposer);
    shown.textContent = proposer.replaceAll("_", " ");
    part("key-of-colours").append(shown);
  }
  return colours.get(proposer);
}

function show(pane, piece) {
  const span = document.createElement("span");
  span.textContent = piece.text;
  if (piece.drafted_by) Object.assign(span, { className: colourOf(piece.drafted_by), title: `drafted by ${piece.drafted_by}` });
  pane.append(span);
}

async function* chunksOf(reply, status) {
  const before = status.textContent, reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.filter((line) => line.startsWith("data: {"))) {
      const chunk = JSON.parse(line.slice(6)), prompt = chunk.speculation?.prompt;
      if (chunk.error) throw new Error(chunk.error.message);
      if (prompt) status.textContent = `${before}: ${prompt.read.toLocaleString("en")} of ${prompt.of.toLocaleString("en")} tokens read`;
      else yield chunk;
    }
  }
}

async function ask(mode, seed, tokens) {
  const headers = { "content-type": "application/json" };
  if (part("key")) headers.authorization = `Bearer ${part("key").value}`;
  const body = {
    model: part("model").value,
    messages: [{ role: "user", content: part("prompt").value }],
    max_tokens: tokens, temperature: Number(part("temperature").value), seed,
    stream: true, stream_options: { include_usage: true },
    cache_salt: `playground-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`,
    speculation: { mode, origins: true, metrics: true },
  };
  const reply = await fetch("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body) });
  if (reply.ok) return reply;
  throw new Error((await reply.json()).error.message);
}

async function run(mode, seed) {
  const pane = part(`${mode}-text`), figures = part(`${mode}-figures`), began = performance.now();
  figures.textContent = "Waiting";
  let first = null, drafted = 0, usage = null, metrics = null;
  for await (const chunk of chunksOf(await ask(mode, seed, Number(part("tokens").value)), figures)) {
    usage = chunk.usage ?? usage;
    metrics = chunk.metrics ?? metrics;
    for (const piece of chunk.choices.flatMap((choice) => choice.origins ?? [])) {
      first ??= performance.now();
      if (piece.drafted_by) drafted += piece.text.length;
      show(pane, piece);
    }
  }
  const seconds = (performance.now() - began) / 1000, tokens = usage.completion_tokens;
  const steps = metrics?.speculative_decoding.num_spec_steps ? `${metrics.speculative_decoding.mean_acceptance_length.toFixed(2)} tokens a pass with a draft, ` : "";
  const share = mode === "off" ? "" : `, ${steps}${Math.round((100 * drafted) / Math.max(1, pane.textContent.length))} % drafted`;
  figures.textContent = `${(tokens / seconds).toFixed(1)} tokens/s: ${tokens} in ${seconds.toFixed(2)} s, the first after ${(((first ?? performance.now()) - began) / 1000).toFixed(2)} s${share}`;
  return tokens / seconds;
}

document.getElementById("play")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = event.target.querySelector("button"), state = part("state");
  const seed = crypto.getRandomValues(new Uint32Array(1))[0];
  button.disabled = true;
  colours.clear();
  for (const name of ["key-of-colours", "off-text", "auto-text", "off-figures", "auto-figures"]) part(name).replaceChildren();
  state.textContent = "Warming up"; // the first answer after a pause is slower
  try {
    for await (const _ of chunksOf(await ask("off", seed, 1), state));
    state.textContent = "Plain decoding runs…";
    const plain = await run("off", seed);
    state.textContent = "Speculation runs…";
    const drafting = await run("auto", seed), same = part("off-text").textContent === part("auto-text").textContent;
    state.textContent = `With speculation ${(drafting / plain).toFixed(2)}x as fast; the answers ${same ? "are the same" : "differ"}.`;
  } catch (error) {
    state.textContent = `Not possible: ${error.message}`;
  } finally {
    button.disabled = false;
  }
});
