"use strict";
// Asks one prompt twice, without drafts and with them, and colours what was drafted and accepted.

const part = (name) => document.getElementById(`play-${name}`);
const colours = new Map();

function colourOf(proposer) {
  if (!colours.has(proposer)) {
    colours.set(proposer, `by${colours.size % 5}`);
    const shown = document.createElement("span");
    shown.className = colours.get(proposer);
    shown.textContent = proposer;
    part("key-of-colours").append(shown);
  }
  return colours.get(proposer);
}

function show(pane, piece) {
  const span = document.createElement("span");
  span.textContent = piece.text;
  if (piece.drafted_by) {
    span.className = colourOf(piece.drafted_by);
    span.title = `drafted by ${piece.drafted_by}`;
  }
  pane.append(span);
}

async function* chunksOf(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: {")) yield JSON.parse(line.slice(6));
  }
}

async function ask(mode, seed, tokens) {
  const headers = { "content-type": "application/json" };
  if (part("key")) headers.authorization = `Bearer ${part("key").value}`;
  const body = {
    model: part("model").value,
    messages: [{ role: "user", content: part("prompt").value }],
    max_tokens: tokens,
    temperature: Number(part("temperature").value),
    seed, stream: true, stream_options: { include_usage: true },
    cache_salt: `playground-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`,
    speculation: { mode, origins: true, metrics: true },
  };
  const reply = await fetch("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body) });
  if (!reply.ok) throw new Error((await reply.json()).error.message);
  return reply;
}

async function run(mode, seed) {
  const pane = part(`${mode}-text`), figures = part(`${mode}-figures`);
  const began = performance.now();
  let first = null, drafted = 0, usage = null, metrics = null;
  for await (const chunk of chunksOf(await ask(mode, seed, Number(part("tokens").value)))) {
    if (chunk.error) throw new Error(chunk.error.message);
    usage = chunk.usage ?? usage;
    metrics = chunk.metrics ?? metrics;
    for (const piece of chunk.choices.flatMap((choice) => choice.origins ?? [])) {
      first ??= performance.now();
      if (piece.drafted_by) drafted += piece.text.length;
      show(pane, piece);
    }
  }
  const seconds = (performance.now() - began) / 1000, tokens = usage.completion_tokens;
  const steps = metrics?.speculative_decoding.num_spec_steps ? `${metrics.speculative_decoding.mean_acceptance_length.toFixed(2)} tokens a drafted step, ` : "";
  const share = mode === "off" ? "" : `, ${steps}${Math.round((100 * drafted) / Math.max(1, pane.textContent.length))} % drafted`;
  figures.textContent = `${(tokens / seconds).toFixed(1)} tokens/s: ${tokens} in ${seconds.toFixed(2)} s, the first after ${(((first ?? performance.now()) - began) / 1000).toFixed(2)} s${share}`;
  return tokens / seconds;
}

document.getElementById("play")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = event.target.querySelector("button"), state = part("state");
  const seed = crypto.getRandomValues(new Uint32Array(1))[0];
  button.disabled = true;
  part("key-of-colours").replaceChildren();
  colours.clear();
  for (const mode of ["off", "auto"]) { part(`${mode}-text`).replaceChildren(); part(`${mode}-figures`).textContent = "waiting"; }
  try {
    await (await ask("off", seed, 1)).text(); // the first answer after a pause is slower
    state.textContent = "Plain decoding runs…";
    const plain = await run("off", seed);
    state.textContent = "Speculation runs…";
    const drafting = await run("auto", seed);
    const same = part("off-text").textContent === part("auto-text").textContent;
    state.textContent = `With speculation ${(drafting / plain).toFixed(2)}x as fast; the answers ${same ? "are the same" : "differ"}.`;
  } catch (error) {
    state.textContent = `Not possible: ${error.message}`;
  } finally {
    button.disabled = false;
  }
});
