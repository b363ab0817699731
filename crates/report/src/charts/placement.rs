//! Places labels so that none covers another.

/// The rectangle of a line of text, centred on its baseline's middle and rotated about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LabelBox {
    /// The middle of the baseline.
    pub baseline: (f64, f64),
    pub width: f64,
    /// The height of a line.
    pub height: f64,
    /// In radians, clockwise, as the y axis points down.
    pub angle: f64,
}

impl LabelBox {
    /// A line that is not rotated.
    pub(super) fn level(baseline: (f64, f64), width: f64, height: f64) -> Self {
        Self { baseline, width, height, angle: 0.0 }
    }

    /// The corners, in order.
    fn corners(&self) -> [(f64, f64); 4] {
        let (sin, cos) = self.angle.sin_cos();
        let half = self.width / 2.0;
        // A quarter of the line height lies below the baseline.
        let (top, bottom) = (-0.75 * self.height, 0.25 * self.height);
        [(-half, top), (half, top), (half, bottom), (-half, bottom)].map(|(x, y)| {
            (self.baseline.0 + x * cos - y * sin, self.baseline.1 + x * sin + y * cos)
        })
    }

    /// Whether two rectangles overlap: whether no side of either separates them (Gottschalk, Lin
    /// and Manocha, "OBBTree", 1996).
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let corners = [self.corners(), other.corners()];
        [self.angle, other.angle].iter().all(|angle| {
            let (sin, cos) = angle.sin_cos();
            [(cos, sin), (-sin, cos)].iter().all(|axis| {
                let [a, b] = corners.map(|corners| project(&corners, *axis));
                a.0 < b.1 && b.0 < a.1
            })
        })
    }
}

/// Projects corners onto an axis.
fn project(corners: &[(f64, f64); 4], axis: (f64, f64)) -> (f64, f64) {
    let along = corners.iter().map(|corner| corner.0 * axis.0 + corner.1 * axis.1);
    let low = along.clone().fold(f64::INFINITY, f64::min);
    (low, along.fold(f64::NEG_INFINITY, f64::max))
}

/// The labels of a drawing so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Placed(Vec<LabelBox>);

impl Placed {
    /// Adds labels if none of them covers an earlier one. Returns whether they were added.
    pub(super) fn add(&mut self, labels: impl IntoIterator<Item = LabelBox>) -> bool {
        let labels: Vec<LabelBox> = labels.into_iter().collect();
        let free = labels.iter().all(|label| !self.0.iter().any(|other| other.overlaps(label)));
        if free {
            self.0.extend(labels);
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::FRAC_PI_4;

    use super::*;

    #[test]
    fn rotated_rectangles_do_not_overlap_if_a_line_separates_them() {
        let level = LabelBox::level((100.0, 100.0), 80.0, 12.0);
        let at = |x: f64, y: f64, angle: f64| LabelBox { baseline: (x, y), angle, ..level };
        assert!(level.overlaps(&at(120.0, 104.0, 0.0)));
        assert!(!level.overlaps(&at(100.0, 113.0, 0.0)), "the next line");
        assert!(!level.overlaps(&at(181.0, 100.0, 0.0)), "beside it");
        assert!(level.overlaps(&at(120.0, 110.0, FRAC_PI_4)));
        // The bounding boxes overlap, the rectangles do not.
        assert!(!level.overlaps(&at(160.0, 80.0, FRAC_PI_4)));
        let mut placed = Placed::default();
        assert!(placed.add([level]));
        assert!(!placed.add([at(100.0, 113.0, 0.0), at(100.0, 101.0, 0.0)]), "all or none");
        assert!(placed.add([at(100.0, 113.0, 0.0)]));
    }
}
