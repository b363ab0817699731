//! Progress on stderr: a progress bar on a terminal, else a line for each stage.

use std::io::IsTerminal;

use firstflight_bench::remote;
use firstflight_lab::Progress;
use indicatif::{ProgressBar, ProgressStyle};

/// Shows the progress of `lab` and `bench`.
pub(crate) struct ProgressDisplay {
    bar: ProgressBar,
    terminal: bool,
}

impl ProgressDisplay {
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

    /// Shows the progress of `lab`.
    pub(crate) fn lab(&self, progress: Progress) {
        match progress {
            Progress::Starting => self.stage("starting network and servers"),
            Progress::Calibrating => self.stage("checking the emulated link"),
            Progress::MeasuringCosts => self.stage("measuring CPU time"),
            Progress::Middleboxes => self.stage("testing middleboxes"),
            Progress::Stalls => self.stage("fetching through middleboxes and proxies"),
            Progress::Restarting => self.stage("restarting the server"),
            Progress::Classifying => self.stage("classifying connections by their packets"),
            Progress::Filming => self.stage("recording filmstrips"),
            Progress::Visiting { done, total } => self.step("visiting pages", "", done, total),
            Progress::Measuring { done, total } => self.step("measuring", "", done, total),
            Progress::Replaying { done, total, server } => {
                self.step("replaying to ", server.name(), done, total);
            }
        }
    }

    /// Shows the progress of `bench`.
    pub(crate) fn bench(&self, progress: remote::Progress) {
        match progress {
            remote::Progress::Starting => self.stage("checking the server"),
            remote::Progress::Measuring { done, total } => self.step("measuring", "", done, total),
        }
    }

    fn stage(&self, stage: &'static str) {
        if self.terminal {
            self.bar.set_message(stage);
        } else {
            errln!("{stage} ...");
        }
    }

    fn step(&self, stage: &str, server: &str, done: usize, total: usize) {
        if self.terminal {
            self.bar.set_message(format!("{stage}{server}"));
            self.bar.set_length(total as u64);
            self.bar.set_position(done as u64);
        } else if done == total || done.is_multiple_of((total / 10).max(1)) {
            errln!("{stage}{server}: {done} of {total}");
        }
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
