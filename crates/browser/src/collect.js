// Runs in a page after its load event, and returns the timings of the navigation and its resources.
(async () => {
  const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  const frame = () => Promise.race([new Promise(requestAnimationFrame), sleep(100)]);
  let paints = [];
  const types = PerformanceObserver.supportedEntryTypes;
  const kind = "largest-contentful-paint";
  if (types.includes(kind)) {
    const observer = new PerformanceObserver((list) => paints.push(...list.getEntries()));
    observer.observe({ type: kind, buffered: true });
    // The content is painted within two frames; the entry follows when the frame has been shown.
    await frame();
    await frame();
    const end = performance.now() + (document.body?.childElementCount ? 300 : 50);
    for (let previous = -1; performance.now() < end; previous = paints.length) {
      paints.push(...observer.takeRecords());
      if (paints.length && paints.length === previous) break;
      await sleep(50);
    }
    observer.disconnect();
  }
  const timings = (entry) => ({
    name: entry.name,
    initiatorType: entry.initiatorType,
    startTime: entry.startTime,
    fetchStart: entry.fetchStart,
    domainLookupStart: entry.domainLookupStart,
    domainLookupEnd: entry.domainLookupEnd,
    connectStart: entry.connectStart,
    secureConnectionStart: entry.secureConnectionStart,
    connectEnd: entry.connectEnd,
    requestStart: entry.requestStart,
    responseStart: entry.responseStart,
    responseEnd: entry.responseEnd,
    nextHopProtocol: entry.nextHopProtocol,
    responseStatus: entry.responseStatus ?? 0,
    transferSize: entry.transferSize,
    encodedBodySize: entry.encodedBodySize,
  });
  const page = performance.getEntriesByType("navigation")[0];
  // A browser may list the icon although its request was blocked.
  const icon = new URL("/favicon.ico", location.href).href;
  const resources = performance.getEntriesByType("resource");
  const paint = (name) => performance.getEntriesByName(name)[0]?.startTime ?? null;
  return {
    origin: performance.timeOrigin,
    page: timings(page),
    domInteractive: page.domInteractive,
    domContentLoaded: page.domContentLoadedEventEnd,
    loadEvent: page.loadEventStart,
    loadEventEnd: page.loadEventEnd,
    kind: page.type,
    resources: resources.filter((entry) => entry.name !== icon).map(timings),
    firstPaint: paint("first-paint"),
    firstContentfulPaint: paint("first-contentful-paint"),
    largestContentfulPaint: paints.at(-1)?.startTime ?? null,
  };
})()
