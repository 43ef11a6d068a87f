/** Compares texts with numbers in them by their value: `rank_2` comes before `rank_10`. */
export const naturally = new Intl.Collator("en", { numeric: true }).compare;
