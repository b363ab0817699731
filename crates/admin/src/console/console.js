// Keeps the page up to date: the server draws it anew each second, and what differs is replaced.
"use strict";

const content = document.getElementById("content");
const live = document.getElementById("live");
let source = null;

function follow() {
  source?.close();
  source = new EventSource("events/page");
  source.onmessage = (event) => {
    const fresh = document.createElement("template");
    fresh.innerHTML = event.data;
    replaceChildren(content, fresh.content);
    say("live", "Live");
  };
  source.onerror = () => {
    say("lost", "No answer since " + new Date().toLocaleTimeString());
    // The browser tries again by itself, unless it was turned away.
    if (source.readyState === EventSource.CLOSED) setTimeout(again, 5000);
  };
}

async function again() {
  try {
    const answer = await fetch("status.json", { method: "HEAD" });
    // The cookie has expired, or the token is another: the form is at the same address.
    if (answer.status === 401) return location.reload();
  } catch {
    // Not there yet.
  }
  if (!document.hidden) follow();
}

function say(state, words) {
  if (live.dataset.state !== state) {
    live.dataset.state = state;
    live.textContent = words;
  }
}

// Elements stay what they are, so that focus, selection and places scrolled to stay too.
function replaceChildren(old, fresh) {
  const [before, after] = [[...old.childNodes], [...fresh.childNodes]];
  after.forEach((node, at) => (before[at] ? replace(before[at], node) : old.append(node)));
  before.slice(after.length).forEach((node) => node.remove());
}

function replace(old, fresh) {
  if (old.nodeName !== fresh.nodeName || old.id !== fresh.id) return old.replaceWith(fresh);
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  replaceChildren(old, fresh);
}

// Nobody looks at a hidden page.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) source?.close();
  else follow();
});
if (!document.hidden) follow();
