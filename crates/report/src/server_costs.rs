use maud::{Markup, html};

use crate::charts::{Bar, BarChart, BarGroup};

/// The costs of servers for the same work, as a standalone SVG file.
#[derive(Clone, Debug)]
pub struct ServerCosts<'a> {
    /// What is compared. It is drawn above the bars, with the unit.
    pub title: &'a str,
    /// How it was measured, for those who cannot see the picture.
    pub description: &'a str,
    /// The unit of the values.
    pub unit: &'a str,
    /// The kinds of work, each with its servers in order: name and value. The first server is
    /// highlighted.
    pub groups: Vec<(String, Vec<(String, f64)>)>,
}

impl ServerCosts<'_> {
    /// The SVG file.
    pub fn svg(&self) -> String {
        let groups: Vec<BarGroup> = self.groups.iter().map(group).collect();
        let heading = format!("{} ({})", self.title, self.unit);
        let chart = BarChart {
            id: "costs",
            title: self.title,
            heading: Some(&heading),
            description: self.description,
            unit: self.unit,
            groups: &groups,
        };
        let drawing: Markup = chart.draw();
        let drawing = html! { (drawing) }.into_string();
        // A drawing within a page needs neither the namespace nor a style of its own.
        let head = "<svg xmlns=\"http://www.w3.org/2000/svg\" ";
        let drawing = drawing.replacen("<svg ", head, 1);
        match drawing.split_once('>') {
            Some((open, rest)) => format!("{open}><style>{STYLE}</style>{rest}\n"),
            None => drawing,
        }
    }
}

fn group((name, servers): &(String, Vec<(String, f64)>)) -> BarGroup {
    let bars = servers.iter().enumerate().map(|(index, (name, value))| Bar {
        name: name.clone(),
        class: if index == 0 { "k-early" } else { "k-other" },
        value: *value,
        published: None,
    });
    BarGroup { name: name.clone(), bars: bars.collect() }
}

const STYLE: &str = "\
text{font:11px system-ui,sans-serif;fill:#1c2733}\
.strong{font-weight:600}.axis{stroke:#8a94a0}.bar{fill:#9aa7b4}.bar.k-early{fill:#0b7d69}\
@media(prefers-color-scheme:dark){text{fill:#dde3ea}.bar{fill:#5d6b79}.bar.k-early{fill:#35b39b}}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_stands_alone_and_escapes_names() {
        let costs = ServerCosts {
            title: "CPU per connection",
            description: "medians",
            unit: "µs",
            groups: vec![(
                "full".to_owned(),
                vec![("a<b".to_owned(), 263.0), ("c".to_owned(), 168.0)],
            )],
        };
        let svg = costs.svg();
        assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\""), "{svg}");
        assert!(svg.contains("<style>") && svg.contains("a&lt;b"), "{svg}");
        assert_eq!(svg.matches("k-early\"").count(), 1, "{svg}");
    }

    #[test]
    fn title_and_unit_are_drawn_and_long_names_have_room() {
        let name = "a server with a name of fifty characters, as built";
        let costs = ServerCosts {
            title: "CPU per connection",
            description: "medians",
            unit: "µs",
            groups: vec![("full".to_owned(), vec![(name.to_owned(), 263.0)])],
        };
        let svg = costs.svg();
        assert!(svg.contains(">CPU per connection (µs)</text>"), "{svg}");
        let label = format!(">{name}</text>");
        let text = svg.split("<text ").find(|text| text.contains(&label)).unwrap();
        let end: f64 =
            text.split("x=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
        // Wide fonts need 0.6 em a character.
        assert!(end >= 0.6 * 11.5 * name.len() as f64, "{text}");
    }
}
