//! Filmstrips: what a page looks like while it is loaded, with 0-RTT off and on.

use std::fs;
use std::path::Path;

use firstflight_browser::{Browser, Picture};
use firstflight_packets::LabelKind;
use firstflight_report::{Filmstrip, Frame};

use super::lane::{BlockRun, Lane};
use super::plan::{Block, Plan};
use crate::{Http, LabError, VisitPage};

/// The blocks of one stop each that are filmed: each browser, off and on, the page with the most
/// to see on the first network that has it.
pub(crate) fn scenes(plan: &Plan) -> Vec<Block> {
    let mut scenes: Vec<Block> = Vec::new();
    let rank = |page| match page {
        VisitPage::Resources => 0,
        VisitPage::Small => 1,
        VisitPage::Image => 2,
    };
    for block in &plan.blocks {
        let known =
            |scene: &&mut Block| (scene.browser, scene.early) == (block.browser, block.early);
        let best = block.stops.iter().min_by_key(|stop| {
            (rank(stop.page), stop.network, stop.http == Http::Three, server(plan, stop.again))
        });
        let Some(best) = best else { continue };
        let scene = Block { stops: vec![*best], ..block.clone() };
        let order = |block: &Block| (rank(block.stops[0].page), block.stops[0].network);
        match scenes.iter_mut().find(known) {
            Some(known) if order(&scene) < order(known) => *known = scene,
            Some(_) => {}
            None => scenes.push(scene),
        }
    }
    scenes
}

/// A server's place among those of the plan.
fn server(plan: &Plan, cell: usize) -> usize {
    let server = plan.cells[cell].server;
    plan.cells.iter().position(|cell| cell.server == server).unwrap_or_default()
}

/// Films a return; the pictures are written below `output`. `None` if it does not succeed.
///
/// # Errors
/// If the browser cannot be started, or a picture cannot be written.
pub(crate) fn film(
    lane: &Lane<'_>,
    scene: &Block,
    (index, name): (usize, &str),
    output: &Path,
) -> Result<Option<Filmstrip>, LabError> {
    let mut tour = BlockRun::new(lane, &format!("f{index}"), scene);
    for _ in 0..TRIES {
        let first = tour.arrive(0, Browser::navigate)?;
        if first.outcome.is_err() {
            continue;
        }
        let again = tour.arrive(0, Browser::film)?;
        let kind = again.seen.and_then(|seen| seen.kind);
        // A return that shows something else would be a wrong picture.
        if scene.early != (kind == Some(LabelKind::EarlyAccepted)) {
            continue;
        }
        if let Ok((_, pictures)) = again.outcome {
            let frames = write(&pictures, name, output)?;
            return Ok(Some(Filmstrip { cell: scene.stops[0].again, frames }));
        }
    }
    Ok(None)
}

const TRIES: usize = 3;

/// Removes the pictures of an earlier run.
pub(crate) fn clear(output: &Path) {
    let _ = fs::remove_dir_all(output.join(DIRECTORY));
}

/// Writes pictures that differ from the one before.
fn write(pictures: &[Picture], name: &str, output: &Path) -> Result<Vec<Frame>, LabError> {
    let refused = |path: &Path| {
        let path = path.to_owned();
        move |source| LabError::File { verb: "write", path, source }
    };
    let directory = output.join(DIRECTORY);
    fs::create_dir_all(&directory).map_err(refused(&directory))?;
    let mut frames = Vec::new();
    let mut before: Option<&Picture> = None;
    for picture in pictures {
        if before.is_some_and(|before| before.jpeg == picture.jpeg) {
            continue;
        }
        before = Some(picture);
        let file = format!("{DIRECTORY}/{name}-{:02}.jpg", frames.len());
        let path = output.join(&file);
        fs::write(&path, &picture.jpeg).map_err(refused(&path))?;
        frames.push(Frame { at_ms: picture.at, file });
    }
    Ok(frames)
}

const DIRECTORY: &str = "films";

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use firstflight_browser::{Installed, Make};
    use firstflight_emulator::Profile;

    use super::*;
    use crate::ServerKind;
    use crate::visits::VisitSet;

    #[test]
    fn each_browser_is_filmed_off_and_on_where_there_is_most_to_see() {
        let installed = |make| Installed { make, program: PathBuf::new(), version: String::new() };
        let browsers = [Make::Firefox, Make::Chromium].map(installed);
        let set = |profile: &str, http, page| VisitSet {
            profiles: vec![Profile::parse(profile).unwrap()],
            servers: vec![ServerKind::Firstflight, ServerKind::Nginx],
            http: vec![http],
            pages: vec![page],
            rounds: 6,
            returns: 2,
        };
        let sets = [
            set("walkthrough", Http::One, VisitPage::Small),
            set("walkthrough", Http::Two, VisitPage::Resources),
            set("2g", Http::Two, VisitPage::Resources),
        ];
        let plan = Plan::new(&browsers, &sets, 1);
        let scenes = scenes(&plan);
        assert_eq!(scenes.len(), 4);
        for scene in scenes {
            let stop = scene.stops[0];
            assert_eq!((stop.page, stop.network), (VisitPage::Resources, 0));
            assert_eq!(stop.server, ServerKind::Firstflight);
        }
    }
}
