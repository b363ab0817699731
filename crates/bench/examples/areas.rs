//! Prints profiles side by side, by area, and the costliest functions of each area.
//!
//!     areas NAME FACTOR FILE...
//!
//! FILE is the output of `perf script --fields ip,sym,dso` or of callgrind; each sample or
//! instruction in it counts for FACTOR units. `scripts/profile` runs this program.

use firstflight_bench::cost::{Area, CallgrindDump, Profile, table};

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.is_empty() || !arguments.len().is_multiple_of(3) {
        return Err("usage: areas NAME FACTOR FILE...".into());
    }
    let mut profiles = Vec::new();
    for group in arguments.chunks(3) {
        let text =
            std::fs::read_to_string(&group[2]).map_err(|error| format!("{}: {error}", group[2]))?;
        let profile = match text.starts_with("# callgrind format") {
            true => Profile::from_callgrind(&CallgrindDump::parse(&text)),
            false => Profile::from_perf_script(&text),
        };
        profiles.push((group[0].as_str(), group[1].parse::<f64>()?, profile));
    }
    // Three fit into 100 columns.
    for part in profiles.chunks(3) {
        let columns: Vec<_> =
            part.iter().map(|(name, factor, profile)| (*name, *factor, profile)).collect();
        println!("{}", table(&columns));
    }
    for (name, factor, profile) in &profiles {
        println!("{name}, costliest functions");
        for area in Area::ALL {
            for (function, cost) in profile.functions(area).into_iter().take(MAX_FUNCTIONS) {
                let share = 100.0 * cost as f64 / profile.total().max(1) as f64;
                if share >= MIN_PERCENT {
                    let function: String = function.chars().take(60).collect();
                    println!(
                        "  {area:<17}  {:>9.2} {share:>5.1} %  {function}",
                        cost as f64 * factor
                    );
                }
            }
        }
        println!();
    }
    Ok(())
}

/// Limits the functions that are printed for each area.
const MAX_FUNCTIONS: usize = 8;
/// Functions with a smaller share of the total are not printed.
const MIN_PERCENT: f64 = 0.3;
