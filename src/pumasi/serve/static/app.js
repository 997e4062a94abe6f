"use strict";
// Without this the page works too: forms are sent, and answered with a page. With it the answer comes without a reload,
// and pictures can be drawn.

for (const place of document.querySelectorAll(".address")) {
  place.textContent = new URL("./", location).href;
}

const form = document.getElementById("form");
const result = document.getElementById("result");
const canvas = document.getElementById("canvas");

if (form) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = event.submitter;
    const data = new FormData(form);
    if (button && button.name) {
      data.set(button.name, button.value);
      if (canvas) drawing.show(button.querySelector("img"), false);
    } else if (canvas) {
      data.delete("file");
      data.set("drawn", drawing.picture());
    }
    await ask(data);
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
}

let last = 0;

async function ask(data) {
  const turn = ++last;
  const slow = setTimeout(() => say(result.dataset.waiting, "hint"), 150);
  try {
    const answer = await fetch(form.action, { method: "POST", body: data, headers: { Accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (turn !== last) return;
    const fresh = page.getElementById("result") || page.querySelector("main");
    result.replaceChildren(...fresh.childNodes);
    const typed = page.querySelector("textarea");
    if (typed && data.has("example")) form.querySelector("textarea").value = typed.value;
    result.scrollIntoView({ block: "nearest" });
  } catch {
    if (turn === last) say(result.dataset.offline, "refusal");
  } finally {
    clearTimeout(slow);
  }
}

function say(text, kind) {
  const line = document.createElement("p");
  line.className = kind;
  line.textContent = text;
  result.replaceChildren(line);
}

const drawing = canvas && makeDrawing();

function makeDrawing() {
  // Drawn large, so that lines are smooth; sent in the size that the model takes.
  const { width, height } = canvas;
  const large = Math.max(1, Math.round(448 / Math.max(width, height)));
  const ground = Number(canvas.dataset.background);
  const grey = (value) => `rgb(${value},${value},${value})`;
  const pen = canvas.getContext("2d");
  const file = document.getElementById("file");
  const label = document.querySelector("label[for=file]");
  canvas.width = width * large;
  canvas.height = height * large;
  canvas.style.aspectRatio = `${width} / ${height}`;
  document.getElementById("drawing").hidden = document.getElementById("clear").hidden = false;
  label.textContent = label.dataset.drawing;
  file.accept = "image/*";

  function clear() {
    pen.fillStyle = grey(ground);
    pen.fillRect(0, 0, canvas.width, canvas.height);
  }

  function show(picture, smooth) {
    clear();
    pen.imageSmoothingEnabled = smooth;
    pen.imageSmoothingQuality = "high";
    pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
  }

  function place(event) {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) * canvas.width) / box.width, ((event.clientY - box.top) * canvas.height) / box.height];
  }

  let from = null;
  function draw(event) {
    if (!from) return;
    const to = place(event);
    pen.strokeStyle = grey(ground < 128 ? 255 : 0);
    pen.lineWidth = canvas.width / 13;
    pen.lineCap = "round";
    pen.beginPath();
    pen.moveTo(...from);
    pen.lineTo(...to);
    pen.stroke();
    from = to;
  }
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    from = place(event);
    draw(event);
  });
  canvas.addEventListener("pointermove", draw);
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (from = null));

  document.getElementById("clear").addEventListener("click", () => {
    clear();
    file.value = "";
    result.replaceChildren();
  });
  file.addEventListener("change", async () => {
    if (!file.files.length) return;
    try {
      show(await createImageBitmap(file.files[0]), true);
      form.requestSubmit();
    } catch {
      // Not a picture that this browser knows: the server says so.
      await ask(new FormData(form));
    }
  });
  clear();

  return {
    show,
    picture() {
      const small = document.createElement("canvas");
      small.width = width;
      small.height = height;
      const into = small.getContext("2d");
      into.imageSmoothingQuality = "high";
      into.drawImage(canvas, 0, 0, width, height);
      return small.toDataURL("image/png");
    },
  };
}
