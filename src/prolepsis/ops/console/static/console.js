"use strict";
// Pauses updates, keeps them from what a person types, and copies texts. Pages work without it.

let paused = sessionStorage.getItem("paused") === "yes";

function showPause() {
  const button = document.getElementById("pause");
  if (!button) return;
  button.hidden = false;
  button.setAttribute("aria-pressed", String(paused));
  button.textContent = paused ? "Updates paused" : "Pause updates";
}

document.addEventListener("click", (event) => {
  if (event.target.id !== "pause") return;
  paused = !paused;
  sessionStorage.setItem("paused", paused ? "yes" : "no");
  showPause();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") document.querySelectorAll("details.kill[open]").forEach((one) => { one.open = false; one.querySelector("summary").focus(); });
});
document.addEventListener("htmx:before:request", (event) => {
  const busy = document.activeElement?.matches("main input, main textarea, main select");
  if (paused || busy || document.hidden) event.preventDefault();
});
const tell = (text) => { const stale = document.getElementById("stale"); if (stale) stale.textContent = text; };
document.addEventListener("htmx:error", () => tell("No answer from the server."));
document.addEventListener("htmx:response:error", () => tell("The server could not update this page."));
document.addEventListener("htmx:after:swap", () => { showPause(); tell(""); });
for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = !navigator.clipboard; // browsers have it over TLS and on the server's own machine
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.closest("details").querySelector("pre").textContent);
    button.textContent = "Copied";
  });
}
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
showPause();
