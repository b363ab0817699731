//! A page before Chromium's camera (`Page.startScreencast`): a picture of each frame that differs.

use serde_json::{Value, json};

use super::{Chromium, comes_to, decoded, evaluation, loaded, loader};
use crate::line::Wait;
use crate::navigation::{COLLECT, strip};
use crate::{BrowserError, Navigation, Picture};

/// What was seen so far.
#[derive(Default)]
struct FilmState {
    /// When, in milliseconds of Unix time, and a JPEG.
    frames: Vec<(f64, Vec<u8>)>,
    /// Loaders whose load event was.
    loaded: Vec<String>,
}

impl Chromium {
    /// Opens a page and takes pictures until it has settled.
    pub(super) fn filmed(
        &mut self,
        url: &str,
        wait: Wait<'_>,
    ) -> Result<(Navigation, Vec<Picture>), BrowserError> {
        let form = json!({ "format": "jpeg", "quality": 60, "maxWidth": 400, "maxHeight": 400 });
        self.page("Page.startScreencast", form, wait)?;
        let mut seen = FilmState::default();
        let went = self.watched("Page.navigate", json!({ "url": url }), &mut seen, wait)?;
        if let Some(loader) = loader(url, &went)? {
            while !seen.loaded.contains(&loader) {
                self.line.hear(wait)?;
                self.take(&mut seen, wait)?;
            }
        }
        let value = self.watched("Runtime.evaluate", evaluation(COLLECT), &mut seen, wait)?;
        let navigation = Navigation::read(comes_to(value)?)
            .map_err(|reason| self.line.garbled(wait.step(), reason))?;
        // The last frame is on its way here.
        self.watched("Runtime.evaluate", evaluation(A_MOMENT), &mut seen, wait)?;
        self.page("Page.stopScreencast", json!({}), wait)?;
        let frames = seen.frames.into_iter();
        let pictures = frames.map(|(at, jpeg)| Picture { at: at - navigation.origin, jpeg });
        let pictures = strip(pictures.collect());
        Ok((navigation, pictures))
    }

    /// Gives a command, and takes pictures until its result is there.
    fn watched(
        &mut self,
        method: &str,
        parameters: Value,
        seen: &mut FilmState,
        wait: Wait<'_>,
    ) -> Result<Value, BrowserError> {
        let session = self.tab.session.clone();
        let id = self.line.send(method, parameters, Some(&session), wait)?;
        loop {
            let response = self.line.hear(wait)?;
            self.take(seen, wait)?;
            if let Some((_, outcome)) = response.filter(|(answered, _)| *answered == id) {
                return outcome.map_err(|reason| self.line.refused(method, reason, wait));
            }
        }
    }

    /// Takes what has come. Each picture is requested by thanks for the one before.
    fn take(&mut self, seen: &mut FilmState, wait: Wait<'_>) -> Result<(), BrowserError> {
        while let Some(event) = self.line.kept_event() {
            if let Some(loader) = loaded(&event) {
                seen.loaded.push(loader.to_owned());
            }
            if event.method != "Page.screencastFrame" {
                continue;
            }
            let at = event.parameters["metadata"]["timestamp"].as_f64().unwrap_or_default();
            let jpeg = decoded(&event.parameters["data"])
                .map_err(|reason| self.line.garbled(wait.step(), reason))?;
            seen.frames.push((at * 1000.0, jpeg));
            let thanks = json!({ "sessionId": event.parameters["sessionId"] });
            self.line.send("Page.screencastFrameAck", thanks, event.session.as_deref(), wait)?;
        }
        Ok(())
    }
}

const A_MOMENT: &str = "new Promise((resolve) => setTimeout(resolve, 150))";
