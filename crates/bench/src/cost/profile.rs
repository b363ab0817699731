use std::collections::HashMap;
use std::fmt::Write;

use super::{Area, CallgrindDump};

/// Where the time or the instructions of a server went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// Samples or instructions by function, with its area.
    functions: HashMap<(Area, String), u64>,
}

impl Profile {
    /// Reads the samples of `perf script --fields ip,sym,dso`, one sample per line.
    pub fn from_perf_script(text: &str) -> Self {
        let mut profile = Self::default();
        for line in text.lines() {
            let Some((symbol, object)) = perf_line(line) else { continue };
            let area = match object.contains("kernel") || object.contains(".ko") {
                true => Area::Kernel,
                false => Area::of(symbol),
            };
            *profile.functions.entry((area, symbol.to_owned())).or_default() += 1;
        }
        profile
    }

    /// The instructions of a dump.
    pub fn from_callgrind(dump: &CallgrindDump) -> Self {
        let functions = dump.instructions.iter();
        let entries = functions.map(|(symbol, cost)| ((Area::of(symbol), symbol.clone()), *cost));
        Self { functions: entries.collect() }
    }

    /// All samples or instructions.
    pub fn total(&self) -> u64 {
        self.functions.values().sum()
    }

    /// Samples or instructions of an area.
    pub fn of_area(&self, area: Area) -> u64 {
        self.functions.iter().filter(|((other, _), _)| *other == area).map(|(_, cost)| cost).sum()
    }

    /// The functions of an area, the costliest first.
    pub fn functions(&self, area: Area) -> Vec<(&str, u64)> {
        let of_area = self.functions.iter().filter(|((other, _), _)| *other == area);
        let mut functions: Vec<_> =
            of_area.map(|((_, name), cost)| (name.as_str(), *cost)).collect();
        functions.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        functions
    }
}

/// A table of profiles side by side, one line per area. A column has a name, a factor and a
/// profile: one sample or instruction counts for `factor` units.
pub fn table(columns: &[(&str, f64, &Profile)]) -> String {
    let mut text = format!("{:<17}", "area");
    for (name, ..) in columns {
        let _ = write!(text, "  {name:>9}       ");
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    for area in Area::ALL {
        if columns.iter().all(|(.., profile)| profile.of_area(area) == 0) {
            continue;
        }
        let _ = write!(text, "{area:<17}");
        for (_, factor, profile) in columns {
            let cost = profile.of_area(area);
            let share = 100.0 * cost as f64 / profile.total().max(1) as f64;
            let _ = write!(text, "  {:>9.1} {share:>4.0} %", cost as f64 * factor);
        }
        text.push('\n');
    }
    let _ = write!(text, "{:<17}", "all");
    for (_, factor, profile) in columns {
        let _ = write!(text, "  {:>9.1}       ", profile.total() as f64 * factor);
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// Symbol and object of a line such as `7f12 SSL_read+0x10 (/usr/bin/server)`.
fn perf_line(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.trim().split_once(' ')?;
    let (symbol, object) = rest.rsplit_once(" (")?;
    let symbol = symbol.rsplit_once("+0x").map_or(symbol, |(name, _)| name);
    Some((symbol.trim(), object.trim_end_matches(')')))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "\
        \x20   ffffffff8123 tcp_sendmsg ([kernel.kallsyms])\n\
        \x20   55d0 fe_mul_impl(unsigned long*) (/opt/firstflight)\n\
        \x20   55d4 fe_mul_impl(unsigned long*) (/opt/firstflight)\n\
        \x20   7f01 __memmove_avx_unaligned_erms (/usr/lib/libc.so.6)\n\
        \n";

    #[test]
    fn samples_are_counted_by_area_and_function() {
        let profile = Profile::from_perf_script(SCRIPT);
        assert_eq!(profile.total(), 4);
        assert_eq!(profile.of_area(Area::Kernel), 1);
        assert_eq!(profile.functions(Area::KeyExchange), [("fe_mul_impl(unsigned long*)", 2)],);
    }

    #[test]
    fn the_table_has_costs_and_shares() {
        let profile = Profile::from_perf_script(SCRIPT);
        let table = table(&[("full", 10.0, &profile)]);
        assert!(table.contains("key exchange            20.0   50 %"), "{table}");
        assert!(!table.contains("QUIC"), "{table}");
        assert!(table.lines().all(|line| line.len() <= 100), "{table}");
    }
}
