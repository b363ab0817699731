// Keeps the page up to date: the server renders it every second, and changed elements are replaced.
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
    setState("live", "Live");
  };
  source.onerror = () => {
    setState("lost", "No response since " + new Date().toLocaleTimeString());
    // The browser reconnects by itself, unless the server has refused the connection.
    if (source.readyState === EventSource.CLOSED) setTimeout(retry, 5000);
  };
}

async function retry() {
  try {
    const response = await fetch("status.json", { method: "HEAD" });
    // The cookie has expired or the token has changed: reloading shows the login form.
    if (response.status === 401) return location.reload();
  } catch {
    // The server is not reachable yet.
  }
  if (!document.hidden) follow();
}

function setState(state, text) {
  if (live.dataset.state !== state) {
    live.dataset.state = state;
    live.textContent = text;
  }
}

// Keeps elements where possible, so that focus, selection and scroll positions stay.
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

// A hidden page needs no updates.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) source?.close();
  else follow();
});
if (!document.hidden) follow();
