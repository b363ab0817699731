// Privileged script: records small frames of the selected page until it is stopped.
(() => {
  const frames = [];
  let recording = true;
  const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  const record = async () => {
    const page = gBrowser.selectedBrowser;
    const scale = 400 / page.clientWidth;
    const bitmap = await page.browsingContext.currentWindowGlobal.drawSnapshot(
      null, scale, "white");
    const at = performance.timeOrigin + performance.now();
    const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    bitmap.close();
    const jpeg = await canvas.convertToBlob({ type: "image/jpeg", quality: 0.6 });
    const bytes = new Uint8Array(await jpeg.arrayBuffer());
    frames.push({ at, jpeg: bytes.toBase64() });
  };
  const run = (async () => {
    while (recording) {
      // Snapshots hang while the page changes its process.
      await Promise.race([record().catch(() => {}), sleep(500)]);
      await sleep(20);
    }
    await record().catch(() => {});
  })();
  globalThis.firstflightFrameRecorder = {
    stop: async () => {
      recording = false;
      await run;
      return frames;
    },
  };
})()
