// Keeps the status page new: fetches its changing part and puts it in the place of the former one.
"use strict";
(() => {
  const live = document.getElementById("live");
  const lost = document.getElementById("lost");
  let former = "";

  async function renew() {
    try {
      const answer = await fetch(live.dataset.from, { signal: AbortSignal.timeout(8000) });
      if (answer.status === 401) return location.reload();  // It says what to do.
      if (!answer.ok) throw new Error(answer.statusText);
      const text = await answer.text();
      // What is selected stays selected: somebody copies it.
      if (text !== former && getSelection().isCollapsed) {
        const tables = [...live.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
        live.innerHTML = former = text;
        live.querySelectorAll(".scroll").forEach((one, i) => { one.scrollLeft = tables[i] || 0; });
        const word = live.querySelector("header strong");
        const job = live.querySelector("h1");
        if (word && job) document.title = `${word.textContent} - ${job.firstChild.textContent.trim()}`;
      }
      lost.hidden = true;
    } catch {
      lost.hidden = false;
    }
    if (!document.hidden) wait();
  }

  let timer = 0;
  function wait() {
    clearTimeout(timer);
    timer = setTimeout(renew, Number(live.dataset.every));
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden) renew(); });
  wait();
})();
