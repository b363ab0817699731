//! Why a condition cannot be decided.

/// A condition that cannot be decided from a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// It speaks of `old`.
    #[error("{condition}: there is no earlier record to take old from; name one by --compare")]
    NoOld {
        /// The condition.
        condition: String,
    },
    /// A figure selects nothing.
    #[error("{condition}: nothing in the record is {figure}; there is {there}")]
    Nothing {
        /// The condition.
        condition: String,
        /// The figure.
        figure: String,
        /// What there is instead.
        there: String,
    },
    /// No cell has all that is compared.
    #[error("{condition}: no cell of {figure} has {other} to go with it; measure both, or filter")]
    NoPartner {
        /// The condition.
        condition: String,
        /// The first figure.
        figure: String,
        /// What it is compared with.
        other: String,
    },
    /// A cell has no such figure.
    #[error(
        "{condition}: {cell} has {samples} good samples, {figure} needs {needed}; measure more"
    )]
    TooFew {
        /// The condition.
        condition: String,
        /// The cell.
        cell: String,
        /// The figure.
        figure: String,
        /// Good samples.
        samples: usize,
        /// How many it needs.
        needed: usize,
    },
    /// A cell has samples, but the figure was not measured.
    #[error("{condition}: {figure} was not measured in {cell}; choose another figure or filter")]
    NotMeasured {
        /// The condition.
        condition: String,
        /// The cell.
        cell: String,
        /// The figure.
        figure: String,
    },
    /// A division by zero, or a number without bounds.
    #[error("{condition}: in {cell} it divides by zero; compare products instead")]
    NotFinite {
        /// The condition.
        condition: String,
        /// The cell.
        cell: String,
    },
}
