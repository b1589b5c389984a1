// Tells the terminal where its dashboard is: beside this page, whatever leads here.
"use strict";

const terminal = document.getElementById("terminal");
const place = new URL("ws", location.origin + location.pathname);
place.protocol = location.protocol === "https:" ? "wss:" : "ws:";
terminal.dataset.sessionWebsocketUrl = place.href;

// Keys are for the dashboard from the first one on; the terminal is made when the page has loaded.
const focus = () => document.querySelector(".xterm-helper-textarea")?.focus();
addEventListener("load", () => setTimeout(focus));

document.getElementById("again").addEventListener("click", () => location.reload());
const reopen = (event) => {
  if (event.key === "Enter" && document.body.classList.contains("-closed")) location.reload();
};
addEventListener("keydown", reopen, { capture: true });
