//! Progress: a moving line on a terminal, a line for each stage elsewhere.

use std::io::IsTerminal;

use firstflight_bench::remote;
use firstflight_lab::Progress;
use indicatif::{ProgressBar, ProgressStyle};

pub(crate) struct Show {
    bar: ProgressBar,
    terminal: bool,
}

impl Show {
    pub(crate) fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if terminal { ProgressBar::new(0) } else { ProgressBar::hidden() };
        let style =
            ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {elapsed}/{duration}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        Self { bar, terminal }
    }

    pub(crate) fn progress(&self, progress: Progress) {
        match progress {
            Progress::Starting => self.stage("starting network and servers"),
            Progress::Calibrating => self.stage("holding the link against its configuration"),
            Progress::Costing => self.stage("counting processor time"),
            Progress::Middleboxes => self.stage("trying middleboxes"),
            Progress::Judging => self.stage("judging packets"),
            Progress::Filming => self.stage("filming pages"),
            Progress::Visiting { done, total } => self.step("visiting", "", done, total),
            Progress::Measuring { done, total } => self.step("measuring", "", done, total),
            Progress::Replaying { done, total, server } => {
                self.step("replaying at ", server.name(), done, total);
            }
        }
    }

    /// Of a server elsewhere.
    pub(crate) fn remote(&self, progress: remote::Progress) {
        match progress {
            remote::Progress::Starting => self.stage("checking the server"),
            remote::Progress::Measuring { done, total } => self.step("measuring", "", done, total),
        }
    }

    fn stage(&self, what: &'static str) {
        if self.terminal {
            self.bar.set_message(what);
        } else {
            eprintln!("{what} ...");
        }
    }

    fn step(&self, what: &str, whom: &str, done: usize, total: usize) {
        if self.terminal {
            self.bar.set_message(format!("{what}{whom}"));
            self.bar.set_length(total as u64);
            self.bar.set_position(done as u64);
        } else if done == total || done.is_multiple_of((total / 10).max(1)) {
            eprintln!("{what}{whom}: {done} of {total}");
        }
    }

    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
