/** Compares strings with embedded numbers in natural order: `rank_2` comes before `rank_10`. */
export const naturally = new Intl.Collator("en", { numeric: true }).compare;
