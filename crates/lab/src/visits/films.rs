//! Filmstrips: pictures of a page while it loads, with 0-RTT off and on.

use std::fs;
use std::path::Path;

use firstflight_browser::{Browser, Frame as BrowserFrame};
use firstflight_packets::LabelKind;
use firstflight_report::{Filmstrip, Frame};

use super::plan::{Block, Plan, VisitPage};
use super::worker::{BlockRun, Worker};
use crate::{HttpVersion, LabError};

/// The blocks to film, with one target each: for each browser, with 0-RTT off and on, the page with
/// the most visible content on the first network that has it.
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
        let best = block.targets.iter().min_by_key(|target| {
            (
                rank(target.page),
                target.network,
                target.http == HttpVersion::Three,
                server_rank(plan, target.return_cell),
            )
        });
        let Some(best) = best else { continue };
        let scene = Block { targets: vec![*best], ..block.clone() };
        let order = |block: &Block| (rank(block.targets[0].page), block.targets[0].network);
        match scenes.iter_mut().find(known) {
            Some(known) if order(&scene) < order(known) => *known = scene,
            Some(_) => {}
            None => scenes.push(scene),
        }
    }
    scenes
}

/// The order of a cell's server in the plan.
fn server_rank(plan: &Plan, cell: usize) -> usize {
    let server = plan.cells[cell].server;
    plan.cells.iter().position(|cell| cell.server == server).unwrap_or_default()
}

/// Films a return visit, and writes the pictures below `output`. Returns `None` if no attempt
/// succeeds.
///
/// # Errors
/// If the browser cannot be started, or a picture cannot be written.
pub(crate) fn film(
    worker: &Worker<'_>,
    scene: &Block,
    (index, name): (usize, &str),
    output: &Path,
) -> Result<Option<Filmstrip>, LabError> {
    let mut run = BlockRun::new(worker, &format!("f{index}"), scene);
    for _ in 0..MAX_ATTEMPTS {
        let first = run.load(0, Browser::navigate)?;
        if first.outcome.is_err() {
            continue;
        }
        let film = run.load(0, Browser::navigate_with_frames)?;
        let kind = film.observed.and_then(|observed| observed.kind);
        // Only a return visit with the expected handshake is kept.
        if scene.early != (kind == Some(LabelKind::EarlyAccepted)) {
            continue;
        }
        if let Ok((_, pictures)) = film.outcome {
            let frames = write(&pictures, name, output)?;
            return Ok(Some(Filmstrip { cell: scene.targets[0].return_cell, frames }));
        }
    }
    Ok(None)
}

const MAX_ATTEMPTS: usize = 3;

/// Removes the pictures of an earlier run.
pub(crate) fn clear(output: &Path) {
    let _ = fs::remove_dir_all(output.join(DIRECTORY));
}

/// Writes the pictures that differ from the previous one.
fn write(pictures: &[BrowserFrame], name: &str, output: &Path) -> Result<Vec<Frame>, LabError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| LabError::File { verb: "write", path, source }
    };
    let directory = output.join(DIRECTORY);
    fs::create_dir_all(&directory).map_err(failed(&directory))?;
    let mut frames = Vec::new();
    let mut previous: Option<&BrowserFrame> = None;
    for picture in pictures {
        if previous.is_some_and(|previous| previous.jpeg == picture.jpeg) {
            continue;
        }
        previous = Some(picture);
        let file = format!("{DIRECTORY}/{name}-{:02}.jpg", frames.len());
        let path = output.join(&file);
        fs::write(&path, &picture.jpeg).map_err(failed(&path))?;
        frames.push(Frame { at_ms: picture.at, file });
    }
    Ok(frames)
}

const DIRECTORY: &str = "films";

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use firstflight_browser::{BrowserKind, Installed};
    use firstflight_emulator::Profile;

    use super::*;
    use crate::ServerKind;
    use crate::visits::VisitSet;

    #[test]
    fn each_browser_is_filmed_off_and_on_with_the_most_visible_page() {
        let installed = |kind| Installed { kind, program: PathBuf::new(), version: String::new() };
        let browsers = [BrowserKind::Firefox, BrowserKind::Chromium].map(installed);
        let set = |profile: &str, http, page| VisitSet {
            profiles: vec![Profile::parse(profile).unwrap()],
            servers: vec![ServerKind::Firstflight, ServerKind::Nginx],
            http: vec![http],
            pages: vec![page],
            rounds: 6,
            returns: 2,
        };
        let sets = [
            set("walkthrough", HttpVersion::One, VisitPage::Small),
            set("walkthrough", HttpVersion::Two, VisitPage::Resources),
            set("2g", HttpVersion::Two, VisitPage::Resources),
        ];
        let plan = Plan::new(&browsers, &sets, 1);
        let scenes = scenes(&plan);
        assert_eq!(scenes.len(), 4);
        for scene in scenes {
            let target = scene.targets[0];
            assert_eq!((target.page, target.network), (VisitPage::Resources, 0));
            assert_eq!(target.server, ServerKind::Firstflight);
        }
    }
}
