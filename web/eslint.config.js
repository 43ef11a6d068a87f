import js from "@eslint/js";
import hooks from "eslint-plugin-react-hooks";
import { defineConfig } from "eslint/config";
import tseslint from "typescript-eslint";

export default defineConfig(
  { ignores: ["node_modules", "src/generated"] },
  js.configs.recommended,
  ...tseslint.configs.strictTypeChecked,
  {
    plugins: { "react-hooks": hooks },
    languageOptions: { parserOptions: { projectService: { allowDefaultProject: ["eslint.config.js"] } } },
    rules: {
      "react-hooks/rules-of-hooks": "error",
      // Columns of equal length are read by an index that is known to be inside; a check at each would cost frames.
      "@typescript-eslint/no-non-null-assertion": "off",
      "@typescript-eslint/no-unused-vars": ["error", { ignoreRestSiblings: true }],
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      // A callback may return whatever its last call returns.
      "@typescript-eslint/no-confusing-void-expression": "off",
    },
  },
);
