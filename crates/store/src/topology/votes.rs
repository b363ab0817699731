//! What a majority says, and since when that is known.

use std::time::Duration;

/// The last answers of some voters, each with the time at which it was requested.
pub(super) struct Votes<T> {
    cast: Vec<Option<(T, Duration)>>,
}

impl<T: PartialEq> Votes<T> {
    pub(super) fn new(voters: usize) -> Self {
        Self { cast: (0..voters).map(|_| None).collect() }
    }

    /// Takes a response in the place of the same voter's last one. `None`: he knows of nothing. Who
    /// does not answer at all casts nothing, and his last word grows old.
    pub(super) fn cast(&mut self, voter: usize, word: Option<T>, asked: Duration) {
        if let Some(place) = self.cast.get_mut(voter) {
            *place = word.map(|word| (word, asked));
        }
    }

    /// What more than half of all voters said last, and when the earliest of the newest answers
    /// that make up this majority was requested.
    pub(super) fn majority(&self) -> Option<(&T, Duration)> {
        let needed = self.cast.len() / 2 + 1;
        self.cast.iter().flatten().find_map(|(word, _)| {
            let same = self.cast.iter().flatten().filter(|(other, _)| other == word);
            let mut asked: Vec<_> = same.map(|(_, asked)| *asked).collect();
            asked.sort_unstable_by(|a, b| b.cmp(a));
            Some((word, *asked.get(needed - 1)?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn half_is_no_majority() {
        let mut votes = Votes::new(4);
        votes.cast(0, Some('a'), seconds(1));
        votes.cast(1, Some('a'), seconds(1));
        assert_eq!(votes.majority(), None);
        votes.cast(2, Some('a'), seconds(1));
        assert_eq!(votes.majority(), Some((&'a', seconds(1))));
    }

    #[test]
    fn a_majority_is_as_old_as_its_oldest_needed_word() {
        let mut votes = Votes::new(3);
        votes.cast(0, Some('a'), seconds(1));
        votes.cast(1, Some('a'), seconds(7));
        assert_eq!(votes.majority(), Some((&'a', seconds(1))));
        votes.cast(2, Some('a'), seconds(5));
        assert_eq!(votes.majority(), Some((&'a', seconds(5))));
        votes.cast(2, Some('b'), seconds(9));
        assert_eq!(votes.majority(), Some((&'a', seconds(1))));
        votes.cast(1, None, seconds(9));
        assert_eq!(votes.majority(), None);
        votes.cast(7, Some('b'), seconds(9));
        assert_eq!(votes.majority(), None);
    }
}
