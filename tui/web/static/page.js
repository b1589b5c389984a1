// Tells the terminal where its dashboard is, and comes back by itself when the connection does.
"use strict";

const ENDED = {
  1000: "The dashboard has ended here. What runs goes on.",
  1011: "The dashboard ended by itself. What runs goes on.",
  4001: "Another tab has taken the place of this one.",
  4002: "Nobody was here for half a day, and the dashboard has ended.",
};
const SOONEST_MS = 1_000;
const LATEST_MS = 30_000;

// Beside this page, whatever leads here.
const place = new URL("ws", location.origin + location.pathname);
place.protocol = location.protocol === "https:" ? "wss:" : "ws:";
document.getElementById("terminal").dataset.sessionWebsocketUrl = place.href;

// The terminal tells nobody why its connection ended.
window.WebSocket = class extends WebSocket {
  constructor(...how) {
    super(...how);
    this.addEventListener("close", (event) => ended(event.code));
  }
};

function ended(code) {
  if (code in ENDED) tell(ENDED[code], true);
  else comeBack(SOONEST_MS);
}

function tell(words, hasEnded) {
  document.getElementById("why").textContent = words;
  again.hidden = !hasEnded;
  leave.hidden = true;
  if (hasEnded) offerToLeave();
}

// A gateway names the page where one signs in; of another place it is none.
let leadsTo = "";
const login = (answer) =>
  (/^<(\/[a-z]+)>; rel="login"$/.exec(answer.headers.get("link") ?? "") ?? [])[1];

function leadToLogin(answer) {
  const path = login(answer);
  if (path) {
    leadsTo = path;
    again.textContent = "Sign in";
  }
}

// Behind a gateway this browser is let in until it signs out.
async function offerToLeave() {
  try {
    const answer = await fetch(location.pathname, { method: "HEAD", cache: "no-store" });
    leave.hidden = !answer.ok || !login(answer);
  } catch {
    // nobody answers
  }
}

async function signOut() {
  const answer = await fetch("sign-out", { method: "POST" });
  location.assign(login(answer) ?? location.pathname);
}

// Whether there is a dashboard again: then this page is opened anew, and where it may not be, why.
async function comeBack(afterMs) {
  tell("The connection is lost. It is tried again.", false);
  await new Promise((resolve) => setTimeout(resolve, afterMs));
  try {
    const answer = await fetch(location.pathname, { cache: "no-store" });
    if (answer.ok) return location.reload();
    if (answer.status < 500) {
      leadToLogin(answer);
      return tell(await answer.text(), true);
    }
  } catch {
    // nobody answers
  }
  return comeBack(Math.min(2 * afterMs, LATEST_MS));
}

// Keys are for the dashboard from the first one on; the terminal is made when the page has loaded.
const focus = () => document.querySelector(".xterm-helper-textarea")?.focus();
addEventListener("load", () => setTimeout(focus));

const again = document.getElementById("again");
const leave = document.getElementById("leave");
leave.addEventListener("click", signOut);
const onward = () => (leadsTo ? location.assign(leadsTo) : location.reload());
again.addEventListener("click", onward);
const onKey = (event) => {
  const hasEnded = document.body.classList.contains("-closed") && !again.hidden;
  if (event.key === "Enter" && hasEnded && document.activeElement !== leave) onward();
};
addEventListener("keydown", onKey, { capture: true });
